"""The item of the demo project, and how a detail page becomes one."""

import scrapy


class PropertyItem(scrapy.Item):
    """One property to let; `image` and `url` are addresses, everything else is the text of the page."""

    url = scrapy.Field()
    number = scrapy.Field()
    title = scrapy.Field()
    price = scrapy.Field()
    description = scrapy.Field()
    address = scrapy.Field()
    image = scrapy.Field()


def property_from(response):
    """Scrape the item of a detail page."""
    return PropertyItem(
        url=response.url,
        number=response.css("span.number::text").get(),
        title=response.css("h1[itemprop=name]::text").get(),
        price=response.css("[itemprop=price]::text").get(),
        description=response.xpath('//*[@itemprop="description"]/text()').get(),
        address=response.xpath('//*[@itemprop="address"]/text()').get(),
        image=response.xpath('//img[@itemprop="image"]/@src').get(),
    )
